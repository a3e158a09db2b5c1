//! A replicated key-value store on openraft and windlass.
