"""Packages of the wheel: flaxformer, and the folder experiments/ as flaxformer.experiments."""

from setuptools import find_namespace_packages, find_packages, setup

experiments = find_namespace_packages(include=["experiments", "experiments.*"], exclude=["*__pycache__*"])
setup(
    packages=[*find_packages(include=["flaxformer", "flaxformer.*"]), *(f"flaxformer.{name}" for name in experiments)],
    package_dir={"flaxformer.experiments": "experiments"},
)
