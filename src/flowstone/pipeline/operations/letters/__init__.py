"""Operations on dead letters: reading, retrying and dropping them."""
