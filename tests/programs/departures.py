"""Programs whose compiler IR does not give what the interpreters give, and why."""

from __future__ import annotations

from dataclasses import dataclass

ALL = ("v4", "v5e", "v6e", "tpu7x")
LOWERED = "wrong already in the IR that JAX lowered"
MOSAIC = "right in the IR that JAX lowered"


@dataclass(frozen=True, kw_only=True)
class Departure:
    """A known disagreement.

    Attributes:
      programs: names, with wildcards.
      blame: part of the text that says at which level it shows.
      why: in a sentence.
      chips: where it shows.
      newest: only with a jax newer than 0.10.2.
    """

    programs: str
    blame: str
    why: str
    chips: tuple[str, ...] = ALL
    newest: bool = False


# docs/findings.md, 13 and 12.
NEGATION = "JAX lowers -x as 0 - x, so that the negation of +0 is +0 and not -0"
TIES = (
    "Mosaic reduces registers in pairs and does not compare the indices of equal values, so that "
    "argmax and argmin of ties are not the first index"
)

# Where the first of equal values is not the one that is found; that depends on their places.
_TIES_SHOW = (
    "argmax_axis0_ties_f32_*",
    "argmin_axis0_ties_f32_*",
    "argmax_axis0_few_ties_f32_16x256",
    "argmax_axis1_ties_f32_16x256",
    "argmin_axis1_ties_f32_16x256",
    "argmin_axis1_ties_f32_5x130",
    "arg*_axis0_infinite_f32",
    "arg*_axis0_without_keepdims_f32",
)

DEPARTURES: tuple[Departure, ...] = (
    Departure(programs="elementwise/neg_*f*", blame=LOWERED, why=NEGATION),
    Departure(programs="iota/checkerboard_*", blame=LOWERED, why=NEGATION),
    Departure(programs="control_flow/switch_clamps_f32", blame=LOWERED, why=NEGATION),
    Departure(programs="grids/conditional_by_step_f32", blame=LOWERED, why=NEGATION),
    *(Departure(programs=f"reductions/{name}", blame=MOSAIC, why=TIES) for name in _TIES_SHOW),
)
