"""How an attribute of torch is replaced for a time, so that neither warnings nor a compiler show it."""
