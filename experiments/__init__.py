"""Experiments that come with nitro. Installed under the import name `nitro_experiments`."""
