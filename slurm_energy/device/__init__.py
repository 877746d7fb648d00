"""The door to measuring and setting devices: NVML, RAPL, saved and restored settings."""
