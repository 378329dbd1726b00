"""What all shapes share: unknown fields are refused, and no text or truth value passes for a number."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool
from pydantic_core import PydanticCustomError

LARGEST_ID = 2**53 - 1  # the largest whole number that every reader of JSON keeps


def _no_text(value: object) -> object:
    # JSON's 11.0 is a whole number, but false and "1" are mistakes that must not be taken for one.
    if isinstance(value, bool | str):
        raise PydanticCustomError("number_type", "a number is expected")
    return value


Whole = Annotated[int, BeforeValidator(_no_text), Field(ge=-LARGEST_ID, le=LARGEST_ID)]
Number = Annotated[float, BeforeValidator(_no_text), Field(allow_inf_nan=False)]
Flag = StrictBool


class Asked(BaseModel):
    """A body that a caller sends."""

    model_config = ConfigDict(extra="forbid")


class Told(BaseModel):
    """An answer, for the description of the API. Answers are built as plain documents, not through these."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
