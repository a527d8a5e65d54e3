"""Anything people have, as blocks of samples with a schema. Each function gives a source for `h5store.pack`."""

from h5store.sources.arrays import arrays, npz, raw, stream
from h5store.sources.hdf5 import hdf5
from h5store.sources.images import images
from h5store.sources.samples import samples
from h5store.sources.tables import table
from h5store.sources.tfrecord import tfrecord

__all__ = ["arrays", "hdf5", "images", "npz", "raw", "samples", "stream", "table", "tfrecord"]
