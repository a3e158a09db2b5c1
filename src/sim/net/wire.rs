//! The wires between hosts: what is sent arrives later, or not at all.
//!
//! TCP is modelled by its visible effects, not by packets. A segment arrives after the link's latency, in order. One that
//! is lost, or that finds the link cut or the host down, is sent again after 200 ms, then after twice as long each
//! time, until the connection times out. A host that does not know a connection answers with an RST.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::rare::Rare;
use crate::rand::Rng;
use crate::sim::link::Link;
use crate::sim::log::EventLog;
use crate::sim::rng::Streams;
use crate::sim::schedule::{Event, Schedule};
use crate::sys::Fd;

/// The first retransmission timeout, and the longest.
const FIRST_RTO: u64 = 200_000_000;
const LONGEST_RTO: u64 = 120_000_000_000;

/// Something that happens to the network at a later time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetEvent {
    /// The first segment in flight towards an end arrives.
    Segment { conn: ConnKey, end: u8 },
    /// An end checks whether its peer still acknowledges.
    AckCheck { conn: ConnKey, end: u8 },
    /// An end probes its idle peer.
    KeepAlive { conn: ConnKey, end: u8 },
    /// An end learns that its peer has room for more bytes.
    Window { conn: ConnKey, end: u8 },
    /// An RST arrives at an end.
    Reset { conn: ConnKey, end: u8 },
    /// The request of a connecting socket arrives at the server.
    Syn { client: SocketKey },
    /// A connecting socket sends its request again, or gives up.
    SynTimer { client: SocketKey, tries: u8 },
    /// The server's answer arrives at the client.
    SynAck { conn: ConnKey },
    /// A connecting socket fails.
    Refused { client: SocketKey, code: i32 },
    /// A datagram arrives.
    Datagram { packet: u32 },
    /// The refusal of a datagram arrives at its sender.
    Unreachable { packet: u32 },
}

/// A connection, which may be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnKey {
    pub(crate) index: u32,
    pub(super) serial: u32,
}

/// A socket, which may be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketKey {
    pub(super) fd: Fd,
    pub(super) serial: u32,
}

/// The links between hosts, and what is on its way.
pub(crate) struct Wire {
    pub(crate) now: u64,
    pub(super) links: Vec<LinkState>,
    /// Some link is cut or held.
    pub(super) has_blocked_links: bool,
    /// Their numbers, by the hosts. Not iterated: `LinkState::hosts` has them in the order of creation.
    index: HashMap<u32, u32, BuildHasherDefault<KeyHasher>>,
    /// Salts the hash that chooses among sockets which share a port.
    pub(super) hash_salt: u64,
    /// Links that were set for a pair of hosts.
    set: BTreeMap<(u16, u16), Link>,
    default: Link,
    streams: Streams,
    /// Every message takes the mean latency.
    constant_latency: bool,
    /// No short counts, and buffers of the default size.
    fixed_buffers: bool,
    /// No faults.
    is_calm: bool,
    /// The least rates of loss, duplicates and reordering on links between hosts, without the test's.
    lossy: (f64, f64, f64),
    /// How long a TCP connection sends again before it fails with ETIMEDOUT.
    pub(crate) user_timeout: u64,
    pub(crate) log: EventLog,
    pub(crate) schedule: Schedule,
}

/// A link in one direction.
pub(super) struct LinkState {
    hosts: (u16, u16),
    pub(super) config: Link,
    pub(super) is_cut: bool,
    is_held: bool,
    /// What has arrived while the link is held.
    held: Vec<NetEvent>,
    /// Latencies are multiplied by this.
    factor: f64,
    /// When the last byte has left.
    free_at: u64,
    /// When the last datagram arrives, of those that were not reordered.
    datagram_at: u64,
    loss: Rare,
    duplicate: Rare,
    reorder: Rare,
    short: Rare,
    rng: Rng,
}

/// What becomes of a packet at the end of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Arrives,
    Lost,
    Held,
}

impl Wire {
    pub(crate) fn new(streams: Streams, log: EventLog, schedule: Schedule) -> Wire {
        Wire {
            now: 0,
            links: Vec::new(),
            has_blocked_links: false,
            index: HashMap::default(),
            hash_salt: streams.stream("reuse port").next_u64(),
            set: BTreeMap::new(),
            default: Link::new(),
            streams,
            constant_latency: false,
            fixed_buffers: false,
            is_calm: false,
            lossy: (0.0, 0.0, 0.0),
            // 15 retransmissions, as on Linux.
            user_timeout: 924_600_000_000,
            log,
            schedule,
        }
    }

    /// Switches parts of the model off.
    pub(crate) fn restrict(&mut self, constant_latency: bool, fixed_buffers: bool, is_calm: bool) {
        (self.constant_latency, self.fixed_buffers, self.is_calm) = (constant_latency, fixed_buffers, is_calm);
    }

    /// The link from one host to another.
    pub(super) fn link(&mut self, from: u16, to: u16) -> u32 {
        match self.index.get(&pair(from, to)) {
            Some(link) => *link,
            None => self.new_link(from, to),
        }
    }

    fn new_link(&mut self, from: u16, to: u16) -> u32 {
        let config = self.applied(from, to, self.configured(from, to));
        let link = self.links.len() as u32;
        let mut rng = self.streams.stream(&format!("net/{from}>{to}"));
        self.links.push(LinkState {
            hosts: (from, to),
            config,
            is_cut: false,
            is_held: false,
            held: Vec::new(),
            factor: 1.0,
            free_at: 0,
            datagram_at: 0,
            loss: Rare::new(config.loss, &mut rng),
            duplicate: Rare::new(config.duplicate, &mut rng),
            reorder: Rare::new(config.reorder, &mut rng),
            short: Rare::new(config.short, &mut rng),
            rng,
        });
        self.index.insert(pair(from, to), link);
        link
    }

    /// Sets the link between all hosts that have none of their own.
    pub(crate) fn set_default(&mut self, link: Link) {
        self.default = link;
        self.apply();
    }

    /// Sets the link from one host to another.
    pub(crate) fn set_link(&mut self, from: u16, to: u16, link: Link) {
        self.set.insert((from, to), link);
        self.apply();
    }

    /// Sets the least rates of loss, duplicates and reordering.
    pub(crate) fn set_lossy(&mut self, loss: f64, duplicate: f64, reorder: f64) {
        self.lossy = (loss, duplicate, reorder);
        self.apply();
    }

    /// No link has faults any more.
    pub(crate) fn calm(&mut self) {
        self.heal();
        self.lossy = (0.0, 0.0, 0.0);
        self.default = self.default.without_faults();
        for link in self.set.values_mut() {
            *link = link.without_faults();
        }
        self.apply();
    }

    /// The link between two hosts as it was set.
    fn configured(&self, from: u16, to: u16) -> Link {
        match self.set.get(&(from, to)) {
            Some(link) => *link,
            None if from == to => Link::loopback(),
            None => self.default,
        }
    }

    /// What the settings of the run make of a link.
    fn applied(&self, from: u16, to: u16, mut link: Link) -> Link {
        if self.is_calm {
            return link.without_faults();
        }
        if from != to && from != 0 && to != 0 {
            let (loss, duplicate, reorder) = self.lossy;
            link.loss = link.loss.max(loss);
            link.duplicate = link.duplicate.max(duplicate);
            link.reorder = link.reorder.max(reorder);
        }
        link
    }

    /// Applies changed settings to the links in use.
    fn apply(&mut self) {
        for index in 0..self.links.len() {
            let (from, to) = self.links[index].hosts;
            let config = self.applied(from, to, self.configured(from, to));
            self.links[index].configure(config);
        }
    }

    pub(crate) fn set_cut(&mut self, from: u16, to: u16, is_cut: bool) {
        if !self.is_calm {
            let link = self.link(from, to);
            self.links[link as usize].is_cut = is_cut && from != to;
            self.find_blocked_links();
        }
    }

    /// What arrives from now on waits for `release`.
    pub(crate) fn hold(&mut self, from: u16, to: u16) {
        if !self.is_calm {
            let link = self.link(from, to);
            self.links[link as usize].is_held = from != to;
            self.find_blocked_links();
        }
    }

    /// What was held arrives now.
    pub(crate) fn release(&mut self, from: u16, to: u16) {
        let link = self.link(from, to);
        let link = &mut self.links[link as usize];
        link.is_held = false;
        for event in link.held.drain(..) {
            self.schedule.push(self.now, Event::Net(event));
        }
        self.find_blocked_links();
    }

    fn find_blocked_links(&mut self) {
        self.has_blocked_links = self.links.iter().any(|link| link.is_cut || link.is_held);
    }

    /// Latencies are multiplied by `factor`.
    pub(crate) fn slow(&mut self, from: u16, to: u16, factor: f64) {
        if !self.is_calm {
            let link = self.link(from, to);
            self.links[link as usize].factor = factor;
        }
    }

    /// No link is cut, held or slow any more.
    pub(crate) fn heal(&mut self) {
        let mut pairs: Vec<(u16, u16)> = self.links.iter().map(|link| link.hosts).collect();
        pairs.sort_unstable();
        for (from, to) in pairs {
            self.release(from, to);
            let link = self.link(from, to);
            let link = &mut self.links[link as usize];
            (link.is_cut, link.factor) = (false, 1.0);
        }
        self.find_blocked_links();
    }

    /// When a packet of this length arrives.
    pub(super) fn arrival(&mut self, link: u32, len: usize) -> u64 {
        self.links[link as usize].arrival(self.now, self.constant_latency, len)
    }

    pub(super) fn is_lost(&mut self, link: u32) -> bool {
        self.links[link as usize].is_lost()
    }

    pub(super) fn is_duplicated(&mut self, link: u32) -> bool {
        let link = &mut self.links[link as usize];
        link.duplicate.occurs(&mut link.rng)
    }

    /// When a datagram arrives: after the datagrams before it, unless it is reordered and later ones overtake it.
    pub(super) fn datagram_arrival(&mut self, link: u32, len: usize) -> u64 {
        let at = self.arrival(link, len);
        let link = &mut self.links[link as usize];
        if link.reorder.occurs(&mut link.rng) {
            let mean = link.config.latency.mean().as_nanos() as u64;
            return at + link.rng.below(4 * mean + 1);
        }
        // Not equal: events at the same time have a random order.
        link.datagram_at = at.max(link.datagram_at + 1);
        link.datagram_at
    }

    /// How many of `len` bytes a read of a stream transfers.
    #[inline(always)]
    pub(super) fn count(&mut self, link: u32, len: usize) -> usize {
        match self.fixed_buffers {
            true => len,
            false => self.links[link as usize].count(len),
        }
    }

    /// How many of `len` bytes a write to a stream transfers, and when they arrive.
    #[inline(always)]
    pub(super) fn send(&mut self, link: u32, len: usize) -> (usize, u64) {
        let link = &mut self.links[link as usize];
        let len = match self.fixed_buffers {
            true => len,
            false => link.count(len),
        };
        (len, link.segment_arrival(self.now, self.constant_latency, len))
    }

    /// When a segment of a stream arrives: as a packet, and later if it is lost and sent again.
    pub(super) fn segment_arrival(&mut self, link: u32, len: usize) -> u64 {
        self.links[link as usize].segment_arrival(self.now, self.constant_latency, len)
    }

    /// The size of a new connection's buffers in one direction.
    pub(super) fn capacity(&mut self, link: u32, default: usize) -> usize {
        match self.fixed_buffers {
            true => default,
            false => 4096 << self.links[link as usize].rng.below(7),
        }
    }

    /// What becomes of a packet that is at the end of a link. A held one comes back when the link is released.
    pub(super) fn fate(&mut self, link: u32, event: NetEvent) -> Fate {
        let link = &mut self.links[link as usize];
        if link.is_cut {
            return Fate::Lost;
        }
        if link.is_held {
            link.held.push(event);
            return Fate::Held;
        }
        Fate::Arrives
    }

    #[inline]
    pub(super) fn schedule(&mut self, at: u64, event: NetEvent) {
        self.schedule.push(at, Event::Net(event));
    }
}

impl LinkState {
    fn configure(&mut self, config: Link) {
        self.config = config;
        self.loss.set(config.loss, &mut self.rng);
        self.duplicate.set(config.duplicate, &mut self.rng);
        self.reorder.set(config.reorder, &mut self.rng);
        self.short.set(config.short, &mut self.rng);
    }

    /// When a packet of this length that is sent now arrives.
    #[inline(always)]
    fn arrival(&mut self, now: u64, constant: bool, len: usize) -> u64 {
        let mut latency = match constant {
            true => self.config.latency.mean().as_nanos() as u64,
            false => self.config.latency.sample(&mut self.rng),
        };
        if self.factor != 1.0 {
            latency = self.slowed(latency);
        }
        match self.config.bandwidth {
            None => now + latency,
            Some(bandwidth) => {
                let takes = (len as u128 * 1_000_000_000 / u128::from(bandwidth)) as u64;
                self.free_at = self.free_at.max(now) + takes;
                self.free_at + latency
            }
        }
    }

    #[cold]
    fn slowed(&self, latency: u64) -> u64 {
        (latency as f64 * self.factor) as u64
    }

    #[inline(always)]
    fn segment_arrival(&mut self, now: u64, constant: bool, len: usize) -> u64 {
        let mut at = self.arrival(now, constant, len);
        let mut rto = FIRST_RTO;
        while self.is_lost() && rto < LONGEST_RTO {
            at += rto;
            rto *= 2;
        }
        at
    }

    #[inline]
    fn is_lost(&mut self) -> bool {
        self.loss.occurs(&mut self.rng)
    }

    /// How many of `len` bytes a read or a write transfers.
    #[inline(always)]
    fn count(&mut self, len: usize) -> usize {
        if len < 2 {
            return len;
        }
        let count = match self.short.occurs(&mut self.rng) {
            true => 1 + self.rng.below(len as u64 - 1) as usize,
            false => len,
        };
        count.min(self.config.max_count)
    }
}

/// Two hosts as a key.
fn pair(from: u16, to: u16) -> u32 {
    u32::from(from) << 16 | u32::from(to)
}

/// The hash of a number: a multiplication. The numbers are the simulation's own, so collisions cannot be provoked.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn write_u128(&mut self, word: u128) {
        self.write_u64(word as u64 ^ (word >> 64) as u64);
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The map uses the upper bits and the lower bits.
        self.0 = product ^ product >> 32;
    }
}

/// How long a sender waits before it sends for the next time.
pub(super) fn rto(tries: u8) -> u64 {
    (FIRST_RTO << tries.min(20)).min(LONGEST_RTO)
}
