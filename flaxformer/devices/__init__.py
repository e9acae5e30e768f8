"""Devices of a computation: meshes, sharding, several processes."""
