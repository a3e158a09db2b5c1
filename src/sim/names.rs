//! Name lookup: the hosts of a world are one zone.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::link::Dist;
use crate::rand::Rng;
use crate::sys::{LookUp, LookUpResult};

/// How lookups of a name end: see [`Sim::lookups`](super::Sim::lookups).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lookup {
    /// With the host's addresses.
    Found,
    /// With the error of a name that does not exist (NXDOMAIN).
    NotFound,
    /// With the error of a name server that does not answer.
    TryAgain,
}

/// The names of a world.
pub(super) struct Zone {
    hosts: BTreeMap<String, Vec<IpAddr>>,
    outcomes: BTreeMap<String, Lookup>,
    pub(super) delay: Dist,
    rng: Rng,
}

impl Zone {
    pub(super) fn new(rng: Rng) -> Zone {
        let loopback = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        Zone {
            hosts: BTreeMap::from([("localhost".to_owned(), loopback)]),
            outcomes: BTreeMap::new(),
            delay: Dist::uniform(Duration::from_micros(50), Duration::from_micros(500)),
            rng,
        }
    }

    pub(super) fn add(&mut self, name: &str, addrs: Vec<IpAddr>) {
        self.hosts.insert(name.to_ascii_lowercase(), addrs);
    }

    pub(super) fn set_outcome(&mut self, name: &str, outcome: Lookup) {
        self.outcomes.insert(name.to_ascii_lowercase(), outcome);
    }

    /// How long the next lookup takes.
    pub(super) fn next_delay(&mut self) -> u64 {
        self.delay.sample(&mut self.rng)
    }

    /// The addresses of a host, the IPv4 address first.
    pub(super) fn look_up(&self, query: &LookUp) -> LookUpResult {
        let name = query.host.to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        let outcome = self.outcomes.get(name).copied().unwrap_or(Lookup::Found);
        let error = |text| io::Error::other(format!("failed to lookup address information: {text}"));
        match (outcome, self.hosts.get(name)) {
            (Lookup::TryAgain, _) => Err(error("Temporary failure in name resolution")),
            (Lookup::Found, Some(addrs)) => {
                let addrs = addrs.iter().map(|addr| SocketAddr::new(*addr, query.port));
                Ok(addrs.collect())
            }
            (Lookup::NotFound, _) | (Lookup::Found, None) => Err(error("Name or service not known")),
        }
    }
}
