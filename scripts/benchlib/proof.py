"""Proof, outside the timing, that a contender serves the data, sample for sample and byte for byte."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field

import numpy as np

from benchlib.contender import PROOF_SEED, Contender, Limit, batch_ids
from benchlib.workloads import Block, Data, Workload


class WrongSamples(Exception):
    """A contender served something else than the data."""


@dataclass
class Proof:
    """Knows a number for every sample of the data and tells from it which samples a batch really holds.

    Notes
    -----
    A sample's number is a sum of its 32-bit words, each times a random odd weight, modulo 2**64: two samples
    share one by accident only, and one wrong byte, or the label of the neighbour, shows.
    """

    workload: Workload
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    known: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))

    @classmethod
    def of(cls, data: Data) -> Proof:
        """Read the data once, from the memory maps."""
        proof = cls(data.workload)
        rng = np.random.default_rng(7)
        for spec in data.workload.fields:
            words = -(-spec.sample_bytes // 4)
            proof.weights[spec.name] = rng.integers(0, 2**63, words, np.uint64) * np.uint64(2) + np.uint64(1)
        proof.known = np.concatenate([proof.numbers(block) for _, block in data.blocks()])
        return proof

    def numbers(self, block: Block) -> np.ndarray:
        """The number of each sample in a batch; raises WrongSamples where shape or dtype differ."""
        total = np.zeros(len(next(iter(block.values()))), np.uint64)
        for spec in self.workload.fields:
            array = np.ascontiguousarray(block[spec.name])
            if array.shape != (len(total), *spec.shape) or array.dtype != np.dtype(spec.dtype):
                raise WrongSamples(f"{spec.name!r} came as {array.dtype} {array.shape}, "
                                   f"expected {spec.dtype} {(len(total), *spec.shape)}")
            words = array.reshape(len(total), -1).view(np.uint32)
            total += np.einsum("ij,j->i", words, self.weights[spec.name], dtype=np.uint64, casting="safe")
        return total

    def check(self, contender: Contender, limit: Limit) -> float:
        """Drain one epoch and compare every sample; returns how widely its batches mix (1.0: fully).

        Raises
        ------
        WrongSamples
            A sample is wrong, comes twice, is missing, or, for random access, is not the one asked for.
        """
        seen: list[np.ndarray] = []
        start = time.perf_counter()
        whole = True
        for batch in contender.epoch(PROOF_SEED):
            seen.append(self.numbers(contender.fields(batch)))
            if len(seen) == limit.batches or (len(seen) > 1 and time.perf_counter() - start > limit.seconds):
                whole = False
                break
        if contender.access == "random":
            return self._check_random(seen)
        return self._check_shuffled(seen, whole)

    def _check_random(self, seen: list[np.ndarray]) -> float:
        for ids, numbers in zip(batch_ids("random", len(self.known), PROOF_SEED), seen, strict=False):
            if not np.array_equal(self.known[ids], numbers):
                raise WrongSamples("a random batch holds other samples than were asked for")
        return 1.0

    def _check_shuffled(self, seen: list[np.ndarray], whole: bool) -> float:
        order = np.argsort(self.known)
        numbers = np.concatenate(seen)
        slots = np.minimum(np.searchsorted(self.known[order], numbers), len(order) - 1)
        ids = order[slots]
        if not np.array_equal(self.known[ids], numbers):
            raise WrongSamples("an epoch holds samples that are not in the data")
        if self._repeats(numbers):
            raise WrongSamples("an epoch holds a sample twice")
        if whole and not np.array_equal(np.sort(numbers), self.known[order]):
            raise WrongSamples("an epoch misses samples")
        ends = itertools.accumulate(len(part) for part in seen)
        spreads = [float(np.std(ids[end - len(part):end])) for part, end in zip(seen, ends, strict=True)]
        return float(np.mean(spreads) / (len(order) / np.sqrt(12)))

    def _repeats(self, numbers: np.ndarray) -> bool:
        """Whether a number came more often than the data hold it: equal samples are no repeat."""
        values, counts = np.unique(numbers, return_counts=True)
        sorted_known = np.sort(self.known)
        held = np.searchsorted(sorted_known, values, "right") - np.searchsorted(sorted_known, values, "left")
        return bool((counts > held).any())
