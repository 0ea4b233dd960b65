"""ResultTypeQueryable: a source or schema that knows the type of its records."""

from __future__ import annotations

import abc

from flinkish.common.typeinfo import TypeInformation

__all__ = ["ResultTypeQueryable"]


class ResultTypeQueryable(abc.ABC):
    @abc.abstractmethod
    def get_produced_type(self) -> TypeInformation: ...
