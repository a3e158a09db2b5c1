//! Prints the addresses and MX records of names: `cargo run --example resolve -- example.com`. All lookups run at once.

use std::io;

use windlass::task::JoinSet;
use windlass_hickory::Resolver;

fn main() -> io::Result<()> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names.push("localhost".to_owned());
    }
    windlass::run(async {
        let resolver = Resolver::from_system()?;
        let mut lookups = JoinSet::new();
        for name in names {
            let resolver = resolver.clone();
            lookups.spawn(async move { print(&resolver, &name).await });
        }
        while let Some(lookup) = lookups.join_next().await {
            lookup.expect("a lookup does not panic");
        }
        Ok(())
    })?
}

async fn print(resolver: &Resolver, name: &str) {
    match resolver.lookup(name, 0).await {
        Ok(addrs) => addrs.iter().for_each(|addr| println!("{name}: {}", addr.ip())),
        Err(error) => println!("{error}"),
    }
    if let Ok(found) = resolver.mx_lookup(name).await {
        found
            .answers()
            .iter()
            .for_each(|record| println!("{name}: MX {}", record.data));
    }
}
