"""Doors of `Reader` that look at a store before a model is trained on it. Behind them is `h5store.explore`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from h5store.explore.stats import Stats
    from h5store.reader import Reader


class Looking:
    """A reader's own picture of itself: text, card, statistics, plots."""

    def __repr__(self: Any) -> str:
        from h5store.explore.text import reader_text

        return reader_text(self)

    def _repr_html_(self: Any) -> str:
        from h5store.explore.card import reader_card

        return reader_card(self)

    def stats(self: Any, *, parts: Mapping[str, Reader] | None = None, progress: bool = True,
              save: bool = False) -> Stats:
        """Statistics of every field, in one pass over the samples, and warnings of what may spoil a training.

        Parameters
        ----------
        parts : mapping of str to Reader, optional
            Views of this store that will train and test a model, such as `split` gives: classes are counted in each,
            and samples that two of them share are told. By default those of the split that is saved in the store, if
            any.
        progress : bool
            Show a bar on standard error.
        save : bool
            Keep the statistics in the store, under the samples and parts that they are of: the next call with the same
            ones reads nothing. The file is replaced by a copy with the note in it.

        Returns
        -------
        Stats
            By field name: count, mean, std, min, max, quantiles, shares of NaN, infinities and zeros, each of shape
            (channels,), and class counts. `to_frame` gives a pandas DataFrame, `warnings` the sentences.

        Raises
        ------
        CorruptChunkError
        OptionError
            A part is of another store; or `save` for a file that others wrote.

        Notes
        -----
        Sums are of float64 and exact but for rounding. Mean, std, min, max and quantiles are of the finite values;
        complex values count by their magnitude. Quantiles are exact up to 65,536 values a channel; beyond, they are of
        one value at random out of each of as many equal stretches, whose rank is off by at most 0.7 % in 99 of 100
        cases
        (``Stats.rank_error``); in stores of more than 64 channels fewer are kept. Holds two windows of some MiB and
        what is kept.
        """
        from h5store.explore.gather import gathered

        return gathered(self, parts, progress, save)

    def plot_samples(self: Any, field: str | None = None, *, ids: Any = None, n: int = 12, by: str | None = None,
                     seed: int = 0) -> Any:
        """Draw some samples of a field: images as a grid, series as lines, vectors as bars.

        Parameters
        ----------
        field : str, optional
            The first feature by default.
        ids : array_like of int, optional
            Samples to draw; by default `n` at random.
        n : int
            Samples, at most 64.
        by : str, optional
            A label or text field: as many samples of each class, one class a row.
        seed : int
            Of the choice.

        Returns
        -------
        ndarray of matplotlib.axes.Axes

        Raises
        ------
        FieldNotFound, SelectionError, MissingExtraError
        """
        from h5store.explore.samples import plot_samples

        return plot_samples(self, field, ids=ids, n=n, by=by, seed=seed)

    def plot_labels(self: Any, field: str | None = None, *, parts: Mapping[str, Reader] | None = None,
                    ax: Axes | None = None) -> Axes:
        """Draw how many samples there are of each class, or the distribution of a label that is a number.

        Parameters
        ----------
        field : str, optional
            The first label by default.
        parts : mapping of str to Reader, optional
            Views to compare, such as `split` gives; shares are drawn then.
        ax : matplotlib.axes.Axes, optional

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        FieldNotFound, MissingExtraError
        """
        from h5store.explore.plots import plot_labels

        return plot_labels(self, field, parts=parts, ax=ax)

    def plot_stats(self: Any, stats: Stats | None = None, *, ax: Axes | None = None) -> Axes:
        """Draw the range of every channel of the inputs: 1 to 99 %, 25 to 75 %, median, and NaN.

        Parameters
        ----------
        stats : Stats, optional
            What `stats` gave; gathered now by default.
        ax : matplotlib.axes.Axes, optional

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        MissingExtraError
        """
        from h5store.explore.plots import plot_stats

        return plot_stats(self.stats(progress=False) if stats is None else stats, ax=ax)

    def plot_batch(self: Any, batches: Any = None, *, step: int = 0, n: int = 8) -> Any:
        """Draw what a model is fed: the first samples of a batch, after transform and normalization.

        Parameters
        ----------
        batches : optional
            What `to_keras` or `loader` gave, or a batch, (inputs, labels); a shuffled loader of 32 samples by default.
        step : int
            Which batch of them.
        n : int
            Samples, at most 64.

        Returns
        -------
        ndarray of matplotlib.axes.Axes

        Raises
        ------
        SchemaError, MissingExtraError
        """
        from h5store.explore.samples import plot_batch

        return plot_batch(self, batches, step=step, n=n)

    def plot_shuffle(self: Any, *, batch_size: int = 32, shuffle: bool | str = True, seed: int = 0, epoch: int = 0,
                     window: Any = None, ax: Axes | None = None) -> Axes:
        """Draw where in the file the samples of each step of an epoch lie: an even cloud is well mixed.

        Parameters
        ----------
        batch_size, shuffle, seed
            As for `loader`.
        epoch : int
        window : str or int, optional
            As for `loader`.
        ax : matplotlib.axes.Axes, optional

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        OptionError, MissingExtraError
        """
        from h5store.explore.plots import plot_shuffle

        return plot_shuffle(self, batch_size=batch_size, shuffle=shuffle, seed=seed, epoch=epoch, window=window, ax=ax)
