"""What commands show: tables, plots and JSON, for people and for programs."""
