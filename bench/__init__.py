"""Programs that measure zlaunch; none of them is shipped."""
