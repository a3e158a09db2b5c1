//! The futures of a race have one output type.

fn main() {
    windlass::run(async {
        windlass::task::race((async { 1 }, async { "one" })).await;
    })
    .unwrap();
}
