//! Line plots.

use super::super::contender::Kind;
use super::svg::{Anchor, Bend, Canvas, Scale, round_down, round_up, short};

/// One contender's line.
pub(super) struct Series {
    pub(super) kind: Kind,
    pub(super) points: Vec<Point>,
}

pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// Minimum and maximum of the rounds.
    pub(super) spread: Option<(f64, f64)>,
    /// The tooltip; without one, the point has no mark.
    pub(super) title: Option<String>,
}

pub(super) struct Axis {
    pub(super) label: String,
    pub(super) bend: Bend,
    pub(super) ends: (f64, f64),
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// A linear axis from zero, with about five round steps.
    pub(super) fn from_zero(label: &str, most: f64, write: impl Fn(f64) -> String) -> Axis {
        let step = round_up(most.max(f64::MIN_POSITIVE) / 6.0);
        let steps = (most * 1.02 / step).ceil().max(1.0) as usize;
        let ticks = (0..=steps).map(|index| index as f64 * step);
        Axis {
            label: label.into(),
            bend: Bend::Linear,
            ends: (0.0, steps as f64 * step),
            ticks: ticks.map(|tick| (tick, short(write(tick)))).collect(),
        }
    }

    /// A logarithmic axis; with ticks between powers of ten only if there are few powers.
    pub(super) fn log(label: &str, (least, most): (f64, f64), write: impl Fn(f64) -> String) -> Axis {
        let (first, last) = (round_down(least), round_up(most.max(least * 1.5)));
        let is_long = last / first > 500.0;
        let mut ticks = Vec::new();
        let mut decade = 10f64.powf(first.log10().floor());
        while decade <= last * 1.001 {
            for step in [1.0, 2.0, 5.0] {
                let tick = decade * step;
                if tick >= first * 0.999 && tick <= last * 1.001 && (step == 1.0 || !is_long) {
                    ticks.push((tick, short(write(tick))));
                }
            }
            decade *= 10.0;
        }
        Axis {
            label: label.into(),
            bend: Bend::Log,
            ends: (first, last),
            ticks,
        }
    }
}

/// Space for the figures next to the axes.
const LEFT: f64 = 58.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 32.0;
const BOTTOM: f64 = 40.0;

pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
    /// Whether points with the same x are drawn side by side, so that their spreads do not overlap.
    pub(super) beside: bool,
}

impl Plot<'_> {
    pub(super) fn draw(&self, (width, height): (f64, f64), class: &str) -> String {
        let mut canvas = Canvas::new(width, height);
        // Points drawn side by side need space at the ends.
        let margin = if self.beside { 14.0 } else { 0.0 };
        let x = Scale::new(self.x.bend, self.x.ends, (LEFT + margin, width - RIGHT - margin));
        let y = Scale::new(self.y.bend, self.y.ends, (height - BOTTOM, TOP));
        self.draw_axes(&mut canvas, x, y);
        for (index, series) in self.series.iter().enumerate() {
            let aside = match self.beside {
                true => (index as f64 - (self.series.len() - 1) as f64 / 2.0) * 3.0,
                false => 0.0,
            };
            series.draw(&mut canvas, x, y, aside);
        }
        canvas.finish(class, self.title)
    }

    fn draw_axes(&self, canvas: &mut Canvas, x: Scale, y: Scale) {
        let (right, floor) = (canvas.width - RIGHT, canvas.height - BOTTOM);
        for (figure, text) in &self.y.ticks {
            let at = y.at(*figure);
            canvas.line("grid", (LEFT, at), (right, at));
            canvas.text("tick", (LEFT - 8.0, at + 4.0), Anchor::End, text);
        }
        let mut free_from = f64::NEG_INFINITY;
        for (figure, text) in &self.x.ticks {
            let at = x.at(*figure);
            canvas.line("grid", (at, TOP), (at, floor));
            // A label that would touch the previous one is left out.
            let half = text.chars().count() as f64 * 3.4 + 3.0;
            if at - half >= free_from {
                canvas.text("tick", (at, floor + 16.0), Anchor::Middle, text);
                free_from = at + half;
            }
        }
        canvas.line("axis", (LEFT, floor), (right, floor));
        canvas.text("label", (8.0, 14.0), Anchor::Start, &self.y.label);
        canvas.text("label", (right, canvas.height - 6.0), Anchor::End, &self.x.label);
    }
}

impl Series {
    fn draw(&self, canvas: &mut Canvas, x: Scale, y: Scale, aside: f64) {
        let name = self.kind.name();
        let place = |point: &Point| (x.at(point.x) + aside, y.at(point.y));
        let places: Vec<(f64, f64)> = self.points.iter().map(place).collect();
        canvas.path(&format!("line k-{name}"), &places, self.kind.title());
        for (point, place) in self.points.iter().zip(&places) {
            if let Some((least, most)) = point.spread {
                let (low, high) = (y.at(least), y.at(most));
                canvas.line(&format!("spread k-{name}"), (place.0, low), (place.0, high));
            }
            if let Some(title) = &point.title {
                canvas.mark(self.kind, *place, title);
            }
        }
    }
}
