"""What a site's own history makes of its policy each night, and how a candidate may take the live policy's place."""
