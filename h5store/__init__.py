"""h5store: pack arrays once into one compressed HDF5 file, serve batches of samples from it."""

from h5store import errors, sources
from h5store._version import __version__
from h5store.doctor import doctor
from h5store.identity import fingerprint, provenance
from h5store.joining import concat
from h5store.packing import pack
from h5store.reader import Reader
from h5store.schema import Field, Role, Schema
from h5store.verify import verify
from h5store.writer import Writer

__all__ = ["Field", "Reader", "Role", "Schema", "Writer", "__version__", "concat", "doctor", "errors", "fingerprint",
           "pack", "provenance", "sources", "verify"]
