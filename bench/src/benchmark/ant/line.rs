//! The line through what was measured.

/// Slope and intercept of the line through points, by least squares.
pub(super) fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let sum = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let (x, y) = (sum(|point| point.0) / count, sum(|point| point.1) / count);
    let both: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    let own: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let slope = both / own;
    (slope, y - slope * x)
}

#[test]
fn a_line_goes_through_its_points() {
    let (slope, intercept) = line(&[(1.0, 5.0), (3.0, 9.0), (5.0, 13.0)]);
    assert!((slope - 2.0).abs() < 1e-9 && (intercept - 3.0).abs() < 1e-9);
}
