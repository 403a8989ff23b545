"""How far consumer groups are behind: lag in records and seconds, headroom, the survey of all groups."""
