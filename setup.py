"""What setup.cfg cannot say: a file of C, left out where there is no compiler. Everything works without it, slower."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("h5store.storage._kernel", ["h5store/storage/kernel.c"], optional=True)])
