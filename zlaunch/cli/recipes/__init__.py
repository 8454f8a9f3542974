"""`zlaunch recipes`: list, show and copy the recipes."""
