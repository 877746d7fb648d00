"""What people type: one file per noun."""
