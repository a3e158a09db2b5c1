//! SVG drawing: elements as text, scales, and the mark of each contender.

use std::fmt::Write;

use super::super::contender::Kind;

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// An SVG image under construction.
pub(super) struct Canvas {
    pub(super) width: f64,
    pub(super) height: f64,
    body: String,
}

#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Canvas {
    pub(super) fn new(width: f64, height: f64) -> Canvas {
        Canvas {
            width,
            height,
            body: String::new(),
        }
    }

    pub(super) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        );
    }

    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        let _ = write!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)], title: &str) {
        let mut data = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(data, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
        }
        let title = escape(title);
        let _ = write!(
            self.body,
            r#"<path class="{class}" d="{data}"><title>{title}</title></path>"#
        );
    }

    pub(super) fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), title: &str) {
        let title = format!(" rx=\"2\"><title>{}</title>", escape(title));
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"{title}</rect>"#
        );
    }

    /// A contender's mark, with a larger invisible area for the pointer.
    pub(super) fn mark(&mut self, kind: Kind, (x, y): (f64, f64), title: &str) {
        let (name, title) = (kind.name(), escape(title));
        let body = format!(r#"<circle class="hit" r="9"/><path class="mark" d="{}"/>"#, shape(kind));
        let _ = write!(
            self.body,
            r#"<g class="k-{name}" transform="translate({x:.1} {y:.1})">{body}<title>{title}</title></g>"#
        );
    }

    pub(super) fn finish(self, class: &str, title: &str) -> String {
        let Canvas { width, height, body } = self;
        let title = escape(title);
        format!(
            r#"<svg class="{class}" viewBox="0 0 {width:.0} {height:.0}" role="img" aria-label="{title}">{body}</svg>"#
        )
    }
}

/// Each contender has its own mark, for readers who cannot distinguish the colours.
fn shape(kind: Kind) -> &'static str {
    match kind {
        Kind::Reactor => "M-4 0A4 4 0 1 1 4 0A4 4 0 1 1 -4 0Z",
        Kind::Proactor => "M-3.7 -3.7H3.7V3.7H-3.7Z",
        Kind::Epoll => "M0 -4.8L4.6 3.4H-4.6Z",
        Kind::Uring => "M0 4.8L4.6 -3.4H-4.6Z",
        Kind::UringMultishot => "M0 -5L5 0L0 5L-5 0Z",
        Kind::Asyncio => "M-1.4 -4.5H1.4V-1.4H4.5V1.4H1.4V4.5H-1.4V1.4H-4.5V-1.4H-1.4Z",
        Kind::Uvloop => "M0 -5L1.5 -1.5L5 0L1.5 1.5L0 5L-1.5 1.5L-5 0L-1.5 -1.5Z",
        Kind::Kernel => "M-4.5 -1.3H4.5V1.3H-4.5Z",
    }
}

/// A legend entry: a piece of the line with its mark.
pub(super) fn swatch(kind: Kind) -> String {
    let mut canvas = Canvas::new(26.0, 12.0);
    canvas.path(
        &format!("line k-{}", kind.name()),
        &[(1.0, 6.0), (25.0, 6.0)],
        kind.title(),
    );
    canvas.mark(kind, (13.0, 6.0), kind.title());
    canvas.finish("swatch", kind.title())
}

/// Maps figures to positions.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Bend {
    Linear,
    Log,
    /// For percentiles: each further nine of 0.9, 0.99, 0.999 is a step.
    Nines,
}

#[derive(Clone, Copy)]
pub(super) struct Scale {
    bend: Bend,
    first: f64,
    last: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Maps `first` to `from` and `last` to `to`.
    pub(super) fn new(bend: Bend, (first, last): (f64, f64), (from, to): (f64, f64)) -> Scale {
        let (first, last) = (bend.bent(first), bend.bent(last));
        Scale {
            bend,
            first,
            last,
            from,
            to,
        }
    }

    pub(super) fn at(&self, figure: f64) -> f64 {
        let share = (self.bend.bent(figure) - self.first) / (self.last - self.first);
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }
}

impl Bend {
    fn bent(self, figure: f64) -> f64 {
        match self {
            Bend::Linear => figure,
            Bend::Log => figure.max(f64::MIN_POSITIVE).log10(),
            Bend::Nines => -(1.0 - figure).max(1e-9).log10(),
        }
    }
}

/// An axis label without a zero fraction: `10.0 us` becomes `10 us`, and `80.0k` becomes `80k`.
pub(super) fn short(text: String) -> String {
    let end = text
        .find(|char: char| !char.is_ascii_digit() && char != '.')
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    match digits.contains('.') {
        true => format!("{}{unit}", digits.trim_end_matches('0').trim_end_matches('.')),
        false => text,
    }
}

/// The next round number: 1, 2 or 5 times a power of ten.
pub(super) fn round_up(figure: f64) -> f64 {
    let decade = 10f64.powf(figure.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
    steps
        .into_iter()
        .find(|step| *step >= figure * 0.999_999)
        .unwrap_or(figure)
}

/// The previous round number.
pub(super) fn round_down(figure: f64) -> f64 {
    let decade = 10f64.powf(figure.log10().floor());
    let steps = [5.0, 2.0, 1.0].map(|step| step * decade);
    steps
        .into_iter()
        .find(|step| *step <= figure * 1.000_001)
        .unwrap_or(figure)
}
