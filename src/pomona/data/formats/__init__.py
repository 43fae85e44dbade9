"""Thin adapters over the libraries that read each format: columns of tables, voxels of images."""
