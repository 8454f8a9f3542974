"""Why a run ended: evidence → verdict."""
