"""Small worlds in which the method can be watched and checked."""
