//! System calls per request. A traced server is slow, so more requests wait for it at a time than otherwise. With one
//! request in flight that changes nothing; with many it favours servers that handle many at once.

use std::io;

use super::contender::{Field, Kind};
use super::echo::fit;
use super::kit::load::{Load, Shape};
use super::kit::machine::Machine;
use super::kit::progress::Progress;
use super::kit::syscalls::count;
use super::limits::Limits;
use super::options::{Plan, SINGLE, USUAL};
use super::serve::Server;

/// A traced system call stops twice for the tracer.
const SECONDS_PER_REQUEST: f64 = 150e-6;
const SECONDS_PER_START: f64 = 0.1;

pub(crate) struct Calls {
    pub(crate) kind: Kind,
    pub(crate) shape: Shape,
    pub(crate) requests: u64,
    pub(crate) calls: u64,
}

impl Calls {
    pub(crate) fn per_request(&self) -> f64 {
        self.calls as f64 / self.requests as f64
    }
}

pub(crate) fn weight_of_one(plan: &Plan) -> f64 {
    SECONDS_PER_START + 2.0 * plan.traced_requests as f64 * SECONDS_PER_REQUEST
}

pub(crate) fn measure(
    plan: &Plan,
    machine: &Machine,
    limits: &Limits,
    field: &Field,
    progress: &mut Progress,
    missing: &mut Vec<String>,
) -> Vec<Calls> {
    let mut all = Vec::new();
    for kind in field.servers() {
        progress.step_of(weight_of_one(plan), &format!("system calls: {}", kind.title()));
        for shape in [SINGLE, fit(USUAL, limits)] {
            match count_one(kind, shape, plan.traced_requests, machine, field) {
                Ok(calls) => all.push(calls),
                // Tracing is allowed for all contenders or for none.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    missing.push(format!("system calls: {error}"));
                    return all;
                }
                Err(error) => {
                    missing.push(format!("system calls, {}: {error}", kind.title()));
                    break;
                }
            }
        }
    }
    all
}

fn count_one(kind: Kind, shape: Shape, requests: u64, machine: &Machine, field: &Field) -> io::Result<Calls> {
    let server = Server::start(kind, machine, field)?;
    let mut load = Load::connect(server.port, shape)?;
    // Accepting is not part of a request.
    load.run_for(4 * shape.connections as u64)?;
    let (requests, calls) = count(&server.process, || load.run_for(requests))?;
    Ok(Calls {
        kind,
        shape,
        requests,
        calls,
    })
}
