"""Programs that run in and around each rank."""
