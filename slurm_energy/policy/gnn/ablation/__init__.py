"""Parts that only networks of ablation studies have: other levels, poolings and sampling; nothing here is served."""
