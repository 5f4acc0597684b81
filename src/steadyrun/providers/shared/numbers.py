"""Defines the integers that can be stored, as types of fields in the lines of a CLI."""

from typing import Annotated

from msgspec import Meta

from steadyrun.model.usage import MOST_TOKENS

TokenCount = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
StoredInteger = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
