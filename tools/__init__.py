"""Development tools for this repository; not shipped."""
