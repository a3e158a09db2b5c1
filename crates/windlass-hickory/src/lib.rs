//! DNS lookups on windlass: hickory's runtime provider.
