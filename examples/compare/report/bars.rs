//! Horizontal bar charts: a name, below it the bar, at its end the figure.

use super::super::contender::Kind;
use super::svg::{Anchor, Bend, Canvas, Scale};

pub(super) struct Bar {
    pub(super) kind: Kind,
    pub(super) value: f64,
    /// Minimum and maximum of the rounds.
    pub(super) spread: Option<(f64, f64)>,
    pub(super) text: String,
}

const ROW: f64 = 46.0;
const BAR: f64 = 14.0;

/// Space for the figures at the ends.
const RIGHT: f64 = 74.0;

pub(super) fn draw(title: &str, bars: &[Bar], width: f64, class: &str) -> String {
    let mut canvas = Canvas::new(width, bars.len() as f64 * ROW + 4.0);
    let most = bars
        .iter()
        .map(|bar| bar.spread.map_or(bar.value, |(_, most)| most.max(bar.value)));
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let x = Scale::new(Bend::Linear, (0.0, most), (1.0, width - RIGHT));
    for (row, bar) in bars.iter().enumerate() {
        let top = row as f64 * ROW;
        let title = format!("{}: {}", bar.kind.title(), bar.text);
        canvas.text("name", (0.0, top + 13.0), Anchor::Start, bar.kind.title());
        let (from, to) = (x.at(0.0), x.at(bar.value));
        let name = bar.kind.name();
        canvas.rect(
            &format!("bar k-{name}"),
            (from, top + 19.0),
            ((to - from).max(2.0), BAR),
            &title,
        );
        let middle = top + 19.0 + BAR / 2.0;
        let mut end = to;
        if let Some((least, most)) = bar.spread {
            canvas.line("whisker", (x.at(least), middle), (x.at(most), middle));
            end = end.max(x.at(most));
        }
        canvas.text("value", (end + 7.0, middle + 4.5), Anchor::Start, &bar.text);
    }
    canvas.finish(class, title)
}
