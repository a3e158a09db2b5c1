//! A name server on the loop of the test: UDP and TCP on one port, answers by name, losses on demand.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use windlass::net::{TcpListener, TcpStream, UdpSocket};
use windlass_hickory::hickory_resolver::proto::op::{Message, Metadata, ResponseCode};
use windlass_hickory::hickory_resolver::proto::rr::rdata::{A, AAAA, SOA, TXT};
use windlass_hickory::hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

/// The number of addresses of `big.test.`, more than an answer over UDP has room for.
pub(crate) const BIG: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

#[derive(Default)]
struct State {
    queries: HashMap<(Transport, String), usize>,
    losses: HashMap<String, usize>,
}

pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    state: Rc<RefCell<State>>,
}

impl Server {
    /// Starts a server. Its tasks end with the loop.
    pub(crate) async fn start() -> Server {
        // A port that is free for UDP may be taken for TCP.
        let (udp, tcp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let udp = UdpSocket::builder().recv_buffer(8 << 20);
            if let Ok(udp) = udp.bind(tcp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let state = Rc::<RefCell<State>>::default();
        let server = Server {
            addr: udp.local_addr().unwrap(),
            state: state.clone(),
        };
        windlass::spawn(serve_udp(udp, state.clone())).detach();
        windlass::spawn(serve_tcp(tcp, state)).detach();
        server
    }

    /// How often a name was asked for.
    pub(crate) fn count(&self, transport: Transport, name: &str) -> usize {
        let state = self.state.borrow();
        state
            .queries
            .get(&(transport, name.to_owned()))
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn total(&self) -> usize {
        self.state.borrow().queries.values().sum()
    }

    /// Loses the next answers for a name.
    pub(crate) fn lose(&self, name: &str, count: usize) {
        self.state.borrow_mut().losses.insert(name.to_owned(), count);
    }
}

async fn serve_udp(socket: UdpSocket, state: Rc<RefCell<State>>) {
    loop {
        let (result, query) = socket.recv_from(Vec::with_capacity(4096)).await;
        let (_, from) = result.unwrap();
        if let Some(answer) = answer(Transport::Udp, &query, &state) {
            // The socket that asked may be gone.
            let _ = socket.send_to(answer, from).await;
        }
    }
}

async fn serve_tcp(listener: TcpListener, state: Rc<RefCell<State>>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        windlass::spawn(serve_connection(stream, state.clone())).detach();
    }
}

/// Each message is preceded by its length. Ends with the connection.
async fn serve_connection(stream: TcpStream, state: Rc<RefCell<State>>) {
    loop {
        let (Ok(_), len) = stream.read_exact(vec![0; 2]).await else {
            return;
        };
        let len = u16::from_be_bytes([len[0], len[1]]);
        let (Ok(_), query) = stream.read_exact(vec![0; len.into()]).await else {
            return;
        };
        let Some(answer) = answer(Transport::Tcp, &query, &state) else {
            continue;
        };
        let mut framed = u16::try_from(answer.len()).unwrap().to_be_bytes().to_vec();
        framed.extend(answer);
        if stream.write_all(framed).await.0.is_err() {
            return;
        }
    }
}

/// The answer to a query, or `None` if it is lost.
fn answer(transport: Transport, query: &[u8], state: &RefCell<State>) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).expect("hickory sends valid queries");
    let asked = query.queries[0].clone();
    let text = asked.name().to_ascii();
    let mut state = state.borrow_mut();
    *state.queries.entry((transport, text.clone())).or_default() += 1;
    if let Some(left) = state.losses.get_mut(&text).filter(|left| **left > 0) {
        *left -= 1;
        return None;
    }
    let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
    answer.metadata = Metadata::response_from_request(&query.metadata);
    answer.add_query(asked.clone());
    let records = records(&text, asked.query_type());
    if text == "missing.test." {
        answer.metadata.response_code = ResponseCode::NXDomain;
    }
    match transport {
        Transport::Udp if records.len() > 20 => answer.metadata.truncation = true,
        _ if records.is_empty() => {
            // With the zone's SOA, negative answers can be cached.
            let zone = Name::from_ascii("test.").unwrap();
            let soa = SOA::new(zone.clone(), zone.clone(), 1, 60, 60, 60, 60);
            answer.add_authority(Record::from_rdata(zone, 60, RData::SOA(soa)));
        }
        _ => {
            for data in records {
                answer.add_answer(Record::from_rdata(asked.name().clone(), 60, data));
            }
        }
    }
    Some(answer.to_vec().expect("the answer can be encoded"))
}

fn records(name: &str, kind: RecordType) -> Vec<RData> {
    let a = |addr: [u8; 4]| RData::A(A(Ipv4Addr::from(addr)));
    let number = |name: &str| {
        name[1..]
            .split('.')
            .next()
            .unwrap()
            .parse::<u16>()
            .unwrap()
            .to_be_bytes()
    };
    match (name, kind) {
        ("one.test." | "lost.test.", RecordType::A) => vec![a([10, 0, 0, 1])],
        ("both.test.", RecordType::A) => vec![a([127, 0, 0, 1])],
        ("both.test.", RecordType::AAAA) => vec![RData::AAAA(AAAA(Ipv6Addr::LOCALHOST))],
        ("text.test.", RecordType::TXT) => vec![RData::TXT(TXT::new(vec!["some text".to_owned()]))],
        (name, RecordType::A) if name.ends_with("big.test.") => (0..BIG)
            .map(|index| a([10, 2, 0, u8::try_from(index).unwrap()]))
            .collect(),
        (name, RecordType::A) if name.ends_with(".many.test.") => {
            let [high, low] = number(name);
            vec![a([10, 1, high, low])]
        }
        _ => Vec::new(),
    }
}
