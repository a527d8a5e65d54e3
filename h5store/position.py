"""Where a loader is: the epoch, the step, and what is left of an epoch that other ranks began."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from h5store.errors import OptionError
from h5store.sampling.plan import EpochPlan

_STATE_VERSION = 1


class Position:
    """The place of a loader in its plan, as numbers that can be kept.

    Attributes
    ----------
    plan : EpochPlan
    epoch_number, step : int
        The next batch is this one.
    """

    plan: EpochPlan
    seed: int
    epoch_number: int
    step: int
    _rest: EpochPlan | None  # of the current epoch, after a change of world_size

    def _fingerprint(self) -> str:
        raise NotImplementedError

    @property
    def current(self) -> EpochPlan:
        """The plan of the current epoch: what is left of it, if other ranks began it."""
        return self.plan if self._rest is None else self._rest

    def advance(self, step: int) -> None:
        """Steps before `step` of the current epoch are served; after the last one the next epoch is current."""
        if step >= len(self.current):
            self.go_to(self.epoch_number + 1)
        else:
            self.step = step

    def go_to(self, epoch: int, step: int = 0) -> None:
        """Make `step` of `epoch` the next batch."""
        self.epoch_number, self.step, self._rest = epoch, step, None

    def state_dict(self) -> dict[str, Any]:
        """Where iteration is, as small JSON: load it into a loader of the same store to go on.

        Returns
        -------
        dict
        """
        plan = self.current
        return {"version": _STATE_VERSION, "store": self._fingerprint(), "epoch": self.epoch_number, "step": self.step,
                "seed": self.seed, "shuffle": plan.shuffle, "window": plan.window, "batch_size": plan.batch_size,
                "drop_last": plan.drop_last, "world_size": plan.world_size, "spans": [list(s) for s in plan.spans]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken. Another world_size or batch_size takes over the unseen samples.

        Raises
        ------
        OptionError
            The state is of another version, store, seed, shuffle or window.
        """
        given = state if isinstance(state, Mapping) else {}
        if given.get("version") != _STATE_VERSION:
            raise OptionError(f"load_state_dict: state version {given.get('version')!r}, expected {_STATE_VERSION}; "
                              "give what state_dict() gave")
        if missing := self.state_dict().keys() - given.keys():
            raise OptionError(f"load_state_dict: the state has no {min(missing)!r}; give what state_dict() gave")
        mine = {"store": self._fingerprint(), "seed": self.seed, "shuffle": self.plan.shuffle,
                "window": self.plan.window, "drop_last": self.plan.drop_last}
        for key, value in mine.items():
            if state[key] != value:
                raise OptionError(f"load_state_dict: the state was taken with {key} {state[key]!r}, this loader has "
                                  f"{value!r}; make the loader with the same {key}")
        spans = tuple((int(lo), int(hi)) for lo, hi in state["spans"])
        taken = replace(self.plan, spans=spans, batch_size=state["batch_size"], world_size=state["world_size"], rank=0)
        self.epoch_number, self.step, self._rest = int(state["epoch"]), int(state["step"]), None
        same = (taken.batch_size, taken.world_size) == (self.plan.batch_size, self.plan.world_size)
        if same and spans == self.plan.spans:
            return
        if same:
            self._rest = replace(self.plan, spans=spans)
        elif self.step or spans != self.plan.spans:
            self._rest, self.step = replace(self.plan, spans=taken.after(self.step)), 0


def step_ranges(plan: EpochPlan, epoch: int, step: int) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of the steps of an epoch from `step` on, one for about every window of the plan."""
    starts = [w.start for w in plan.windows(epoch, step)]
    for after in [*starts[1:], None]:
        stop = step
        while stop < len(plan) and (after is None or plan.bounds(stop)[0] < after):
            stop += 1
        if stop > step:
            yield step, stop
        step = stop
