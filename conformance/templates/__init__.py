"""Files that `conformance vendor` copies into another repository; nothing imports them here."""
