"""A job at a site: the site's settings, where the job may start, and how the GPU types there compare."""
