"""Targets: devices that are not there, and programs that are compiled for them."""
