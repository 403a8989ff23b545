"""SCRAM credentials of users who do not exist, with which their logins go on until the proof is refused. Pure.

The broker's challenge has the salt and the iterations of the user's credential. `flowstone user`, Kafka's tools and
librdkafka choose them differently. An invented credential looks like the stored ones, so that nobody can tell users who
do not exist from others. A name keeps its salt as long as the same forms are stored.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from flowstone.authentication.scram import (
    ITERATIONS_MIN,
    SALT_ALPHABET,
    SALT_CHARACTERS,
    ScramCredential,
    ScramMechanism,
    text_of,
)

Stored = Mapping[tuple[str, ScramMechanism], ScramCredential]
_CHOICE_BYTES = 8


class Form(NamedTuple):
    """The parts of a credential that a client sees before it has proven its password."""

    iterations: int = ITERATIONS_MIN
    salt_bytes: int = SALT_CHARACTERS
    has_text_salt: bool = True


TOKEN_FORM = Form()


def form_of(credential: ScramCredential) -> Form:
    is_text = not credential.salt.translate(None, SALT_ALPHABET)
    return Form(credential.iterations, len(credential.salt), is_text)


def invented_credential(mechanism: ScramMechanism, user: str, secret: bytes, form: Form) -> ScramCredential:
    """Return a credential of this form that no password fits, the same each time."""
    seed = hmac.digest(secret, f"{mechanism.sasl_name},{user}".encode(), "sha512")
    keys = hmac.digest(secret, seed, "sha512")[: mechanism.key_bytes]
    random = hashlib.shake_256(seed).digest(form.salt_bytes)
    return ScramCredential(text_of(random) if form.has_text_salt else random, keys, keys, form.iterations)


class InventedCredentials:
    def __init__(self, stored: Callable[[], Stored], secret: Callable[[], bytes]) -> None:
        """Invent credentials that look like the stored ones; `secret` is what their salts are derived from."""
        self._stored, self._secret = stored, secret
        self._counted: Stored | None = None
        self._forms: dict[ScramMechanism, Counter[Form]] = {}

    def of_user(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        secret = self._secret()
        return invented_credential(mechanism, user, secret, self._form(mechanism, user, secret))

    def of_token(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        return invented_credential(mechanism, token_id, self._secret(), TOKEN_FORM)

    def _form(self, mechanism: ScramMechanism, user: str, secret: bytes) -> Form:
        """Return the form for a name: each with a probability as high as its share of the stored credentials.

        A change of the stored credentials changes the forms of few names (rendezvous hashing).
        """
        stored = self._stored()
        if stored is not self._counted:
            self._forms = {each: Counter() for each in ScramMechanism}
            for (_, of_mechanism), credential in stored.items():
                self._forms[of_mechanism][form_of(credential)] += 1
            self._counted = stored
        forms = self._forms[mechanism]
        if len(forms) <= 1:
            return next(iter(forms), Form())

        def score(form: Form) -> float:
            digest = hmac.digest(secret, f"{mechanism.sasl_name},{user},{form}".encode(), "sha512")
            fraction = (int.from_bytes(digest[:_CHOICE_BYTES], "big") + 1) / (1 << 8 * _CHOICE_BYTES)
            return math.log(fraction) / forms[form]  # at most 0; the share of the highest one is proportional

        return max(forms, key=score)
