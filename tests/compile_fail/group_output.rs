//! A group must know whether an output is a failure.

struct Answer;

fn main() {
    windlass::run(async {
        let group = windlass::task::TaskGroup::new();
        group.spawn(async { Answer });
        group.join().await.unwrap();
    })
    .unwrap();
}
