"""A simulated cluster: the services' own `app.run` as processes, their images, and their supervisor."""
