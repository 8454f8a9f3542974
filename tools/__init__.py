"""Programs for work on this repository; none of them is shipped."""
