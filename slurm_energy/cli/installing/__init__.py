"""Files that install and uninstall write on a host, and the lines they edit in slurm.conf."""
