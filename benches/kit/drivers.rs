//! The drivers available to a bench.

use std::io;

use windlass::{Builder, DriverChoice, EventLoop};

/// A windlass driver and its name in options and tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Driver {
    pub(crate) name: &'static str,
    pub(crate) choice: DriverChoice,
}

const ALL: [Driver; 2] = [
    Driver {
        name: "proactor",
        choice: DriverChoice::Proactor,
    },
    Driver {
        name: "reactor",
        choice: DriverChoice::Reactor,
    },
];

impl Driver {
    pub(crate) fn named(name: &str) -> Option<Driver> {
        ALL.into_iter().find(|driver| driver.name == name)
    }

    pub(crate) fn builder(self) -> Builder {
        Builder::new().driver(self.choice)
    }

    pub(crate) fn open(self) -> io::Result<EventLoop> {
        self.builder().build()
    }
}

/// The drivers that work on this machine. Prints why the others are left out.
pub(crate) fn available() -> Vec<Driver> {
    let starts = |driver: &Driver| match driver.open() {
        Ok(_) => true,
        Err(error) => {
            eprintln!("the {} is left out: {error}", driver.name);
            false
        }
    };
    ALL.into_iter().filter(starts).collect()
}
