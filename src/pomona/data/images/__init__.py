"""Images and volumes: where their voxels lie, and what their files have in common."""
