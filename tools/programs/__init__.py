"""Run training programs of other projects under their own launcher and under zlaunch: `make programs`."""
