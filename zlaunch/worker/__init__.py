"""What runs in and around each rank."""
